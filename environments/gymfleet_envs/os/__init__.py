"""AgentBench's OS interaction: a question or a chore, and a root shell in a sandbox."""
