"""BabyAI: walk through rooms on a grid and do what the goal says."""
