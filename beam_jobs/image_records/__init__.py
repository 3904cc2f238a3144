"""Images: headers, pixels, and the records made from them."""
