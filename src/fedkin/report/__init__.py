"""What a run looks like: tables for the console, figures, and one HTML page, from the files of a run folder.

``folder``    a run folder, read
``rows``      a comparison in numbers
``papers``    its tables for papers: Markdown, LaTeX, CSV
``tables``    comparison, final figures, clients; as rich table, Markdown, text and HTML
``plots``     accuracy over rounds, per client against Local, per method
``relations`` who learned from whom
``page``      the HTML page

Nothing is imported here: drawing needs matplotlib, which a run without a report should not wait for.
"""
