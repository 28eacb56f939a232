"""AgentGym's academia: the DBLP citation network, generated."""
