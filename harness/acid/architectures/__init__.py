"""How the matrices of an acid model are laid out in the files of each architecture."""
