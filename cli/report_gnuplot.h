/* report_gnuplot.h - runs gnuplot as a child: a script goes in, an SVG document comes out */
#ifndef CLI_REPORT_GNUPLOT_H
#define CLI_REPORT_GNUPLOT_H

#include <stdbool.h>
#include <stddef.h>

/* Whether there is a gnuplot to run. */
bool gnuplot_available(void);

/* Run the script; *svg is the document, to be freed. If that fails *svg is NULL and reason[size]
 * says why in one line. */
void gnuplot_run(const char *script, char **svg, char *reason, size_t size);

#endif
