"""Tools that suites work with: two engines that are asked, once or again in other ways."""
