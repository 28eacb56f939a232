"""TextCraft: make an item from raw materials by a list of crafting commands."""
