"""Stitching: can network B read network A's features through a map of one family?"""
