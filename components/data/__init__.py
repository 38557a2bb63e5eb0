"""Where images come from, how they are checked and how they are split."""
