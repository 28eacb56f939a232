"""What a language model that judges is asked, and what counts as its verdict: for those who ask, and to train one."""
