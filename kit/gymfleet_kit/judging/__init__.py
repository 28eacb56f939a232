"""The questions to a judge model, and the reading of its verdicts: for asking one, and for training one."""
