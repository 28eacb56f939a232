"""ALFWorld: find, carry, wash, heat and cool things in a household, by text."""
