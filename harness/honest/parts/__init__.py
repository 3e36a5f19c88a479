"""Parts that honest engines are made of."""
