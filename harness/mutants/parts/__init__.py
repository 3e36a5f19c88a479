"""Parts that wrong engines are made of."""
