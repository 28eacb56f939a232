"""KG: answer a question over a knowledge graph with seven tools, as in AgentBench."""
