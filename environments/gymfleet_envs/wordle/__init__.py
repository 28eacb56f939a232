"""Wordle: find a hidden five-letter word in six guesses."""
