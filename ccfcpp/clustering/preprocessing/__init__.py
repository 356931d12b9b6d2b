"""What clients learn together by sums before a system begins, and any system after it."""
