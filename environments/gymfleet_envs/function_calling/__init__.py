"""Function calling: BFCL's questions and dialogues, or generated ones."""
