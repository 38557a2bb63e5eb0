"""Files that anyone may have made: bounded, checked, read and written whole."""
