"""Rows of a data set as tasks: a prompt, and a right answer that a scorer compares the reply with."""
