"""Loads from many hosts: a Ray cluster carries the engines, and one process of it speaks for all of them."""
