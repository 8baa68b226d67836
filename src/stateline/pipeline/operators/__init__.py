"""Operators over keyed state: what each computes from a batch of rows and the tables of its subtask."""
