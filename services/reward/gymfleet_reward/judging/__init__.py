"""Language models as judges: who they are, what they may cost, and which verdicts are known."""
