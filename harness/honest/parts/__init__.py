"""What honest engines are made of."""
