"""The MoX paper's evaluation: what ``scripts/reproduce_paper.py`` computes, keeps, tabulates and draws."""
