"""Image encoders, their text side and heads, and the loop that trains them."""
