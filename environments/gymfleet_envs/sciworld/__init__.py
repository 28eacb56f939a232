"""ScienceWorld: elementary science experiments in a simulated house, played in text."""
