"""What a run looks like: tables for the console, figures, and one HTML page, from the files of a run folder.

``folder``    a run folder, read
``rows``      a comparison in numbers
``papers``    its tables for papers: Markdown, LaTeX, CSV
``tables``    comparison, final figures, clients; as rich table, Markdown, text and HTML
``charts``    what all charts have in common, and how one becomes SVG or PNG
``figures``   accuracy over rounds, per client against Local, per method
``costs``     kinds of classes, bytes, seconds
``relations`` who learned from whom
``people``    single clients: rows of the table, what opening one shows, labels
``island``    all of these for a run or a comparison, and the warnings
``page``      the HTML page, with ``assets/page.js`` and ``assets/page.css``

Nothing is imported here: a run without a report should not wait for the library that draws.
"""
