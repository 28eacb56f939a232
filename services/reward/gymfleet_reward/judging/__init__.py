"""Language models as judges: who they are, what they are shown, and what counts as a verdict."""
