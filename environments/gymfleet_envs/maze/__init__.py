"""Mazes in words: walk to the goal, seeing only the walls around the present cell."""
