"""Chats: their messages in rows, and the templates that render them."""
