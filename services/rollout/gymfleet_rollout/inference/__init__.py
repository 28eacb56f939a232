"""Where tokens come from: vLLM inside this process, or vLLM's servers by URL."""
