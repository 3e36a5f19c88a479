"""What wrong engines are made of."""
