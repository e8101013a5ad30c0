"""Mathematics with one right answer: DAPO-Math-17K, GSM8K, MATH and their like, or problems generated on the spot."""
