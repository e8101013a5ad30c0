"""What is asked, which tools answer and how it is scored. Knows nothing of engines, Ray or torch."""
