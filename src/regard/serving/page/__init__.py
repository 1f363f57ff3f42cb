"""The web page at `/`: its assets, and how they are served."""
