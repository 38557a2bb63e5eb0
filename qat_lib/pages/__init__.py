"""Pages for people: HTML, SVG pictures, the view of a graph, readable numbers."""
