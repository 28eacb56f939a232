"""The sources of tokens: vLLM inside this process, or vLLM servers given by URL."""
