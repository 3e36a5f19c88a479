"""Parts from which honest engines are built."""
