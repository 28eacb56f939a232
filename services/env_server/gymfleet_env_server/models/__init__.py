"""The language models that environments ask: who answers, within which bounds, and what they replied."""
