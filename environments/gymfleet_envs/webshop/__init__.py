"""WebShop: search a shop, choose options, buy what the instruction asks for."""
