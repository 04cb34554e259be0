"""By what runs are found: their search attributes, their rows, and the language in which rows are asked for."""
