"""Front ends: the ways in which people write workflows. All of them make a TaskGraph."""
