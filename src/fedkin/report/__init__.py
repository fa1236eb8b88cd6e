"""Reports of runs: tables for the console, figures, and one HTML page, from the files of a run folder.

``folder``    reading of a run folder
``rows``      a comparison in numbers
``papers``    its tables for publications: Markdown, LaTeX, CSV
``tables``    comparison, final figures, clients; as rich table, Markdown, text and HTML
``charts``    common parts of all charts, colours of the page, and drawing of a chart as SVG or PNG
``figures``   a chart with its title and caption; colours of methods, axes, thinning
``accuracy``  accuracy over rounds and at the end
``spreads``   accuracy and gain of all clients
``costs``     groups of classes, bytes, seconds
``weights``   relations between clients as weights
``clusters``  relations between clients as clusters
``client_notes``  numbers that a method notes on each client, such as the share of a safe form
``naming``    names of clients and classes on axes, and their order there
``people``    single clients: rows of the table, their details, labels
``parts``     the clients and relations of every run, and their mean over seeds, packed for the page's script
``island``    all of these for a run or a comparison, and the warnings
``markup``    the HTML of a page
``page``      the page of a run or a comparison, with the scripts and the style in ``assets``
``export``    every figure as SVG, every table as CSV

Nothing is imported here: a run without a report need not wait for the library that draws.
"""
