"""Front ends: the ways in which users write workflows. All of them make a TaskGraph."""
