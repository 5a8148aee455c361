/* plot.c - writes gnuplot scripts
 *
 * The axis of values has its label on top, where it can be read without turning the head and takes
 * no width from the plot; grid lines replace its ticks. Legends are in the page, unless a key is
 * asked for: it stands below the plot, where it hides no line.
 */
#include "report/plot.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#define FIRST_LABEL 3 /* 1 and 2 are those of the axes */
#define LEFT 46       /* of the plot, as wide as numbers of the axis are */
#define RIGHT 20
#define LETTER 7.5    /* width of a letter, at most on average */
#define WIDE 9.1      /* the same to gnuplot, which does not know the font */
#define KEY_ROW 20    /* height of a row of the key */
#define KEY_LINE 47.0 /* width of a line in the key, with room around it */

static const char look[] = "set encoding utf8\n"
                           "set border 1 lw 1 lc rgb '" SVG_COLOR "'\n"
                           "set xtics nomirror out scale 0.5 offset 0,0.2 tc rgb '" SVG_COLOR "'\n"
                           "set ytics nomirror out scale 0 offset 0.6,0 tc rgb '" SVG_COLOR "'\n"
                           "set grid ytics lt 1 lw 0.75 lc rgb '" SVG_COLOR "'\n"
                           "set format '%%g'\n"
                           "unset key\n";

/* Height and what depends on it; foot is the height of what stands below the label of x. */
static void set_height(plot *drawing, int foot) {
    double height = drawing->height;
    plot_set(drawing, "set terminal svg size %d,%d dynamic noenhanced rounded font 'sans-serif,13'",
             drawing->width, drawing->height);
    plot_set(drawing, "set bmargin at screen %g", (48.0 + foot) / height);
    plot_set(drawing, "set tmargin at screen %g", 1.0 - 30.0 / height);
    plot_set(drawing, "set label 1 at screen 0.02, screen %g", 1.0 - 12.0 / height);
    plot_set(drawing, "set label 2 at graph 0.5, screen %g", (11.0 + foot) / height);
}

bool plot_begin(plot *drawing, int width, int height, const char *x, const char *y) {
    *drawing = (plot){.width = width, .height = height};
    drawing->script = open_memstream(&drawing->text, &drawing->size);
    drawing->command = open_memstream(&drawing->command_text, &drawing->command_size);
    if (drawing->script == NULL || drawing->command == NULL)
        return false;
    fprintf(drawing->script, look, COLOR_SOFT, COLOR_INK, COLOR_INK, COLOR_GRID);
    plot_set(drawing, "set lmargin at screen %g", (double)LEFT / width);
    plot_set(drawing, "set rmargin at screen %g", 1.0 - (double)RIGHT / width);
    plot_set(drawing, "set label 1 '%s' left tc rgb '" SVG_COLOR "'", y, COLOR_SOFT);
    plot_set(drawing, "set label 2 '%s' center tc rgb '" SVG_COLOR "'", x, COLOR_SOFT);
    set_height(drawing, 0);
    return true;
}

void plot_set(plot *drawing, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(drawing->script, format, arguments);
    va_end(arguments);
    fputc('\n', drawing->script);
}

void plot_logarithmic(plot *drawing, char axis) {
    plot_set(drawing, "set logscale %c", axis);
    drawing->log_x = drawing->log_x || axis == 'x';
    drawing->log_y = drawing->log_y || axis == 'y';
}

/* Letters of a name in the key, which is UTF-8. */
static int letters_of(const char *name) {
    int letters = 0;
    for (; *name != '\0' && letters < SVG_LABEL_COLUMNS; name++)
        letters += (*name & 0xc0) != 0x80;
    return letters;
}

void plot_key(plot *drawing, const char *const *labels, int nlabels) {
    int longest = 1;
    for (int i = 0; i < nlabels; i++)
        longest = letters_of(labels[i]) > longest ? letters_of(labels[i]) : longest;
    int columns = (int)((drawing->width - LEFT - RIGHT) / (LETTER * longest + KEY_LINE));
    columns = columns < nlabels ? columns : nlabels;
    columns = columns > 1 ? columns : 1;
    int foot = KEY_ROW * ((nlabels + columns - 1) / columns);
    drawing->height += foot;
    set_height(drawing, foot);
    plot_set(drawing,
             "set key at graph 0.5, screen %g center bottom horizontal maxcols %d Left reverse "
             "samplen 2 spacing 1 width %g tc rgb '" SVG_COLOR "'",
             2.0 / drawing->height, columns, LETTER / WIDE * longest - SVG_LABEL_LETTERS,
             COLOR_INK);
    drawing->has_key = true;
}

void plot_label(plot *drawing, int label, double y) {
    plot_set(drawing,
             "set label %d '" SVG_LABEL "' at graph 0, first %g left tc rgb '" SVG_COLOR "'",
             label + FIRST_LABEL, label, y, COLOR_INK);
}

static bool can_show(double value, bool logarithmic) {
    return isfinite(value) && !(logarithmic && value <= 0);
}

static void put_number(FILE *out, double value, bool logarithmic) {
    if (can_show(value, logarithmic))
        fprintf(out, " %.7g", value);
    else
        fputs(" NaN", out);
}

/* The smallest of 1, 2 and 5 times a power of ten that splits the width into at most 6. */
static double nice_step(double width) {
    double power = pow(10.0, floor(log10(width / 6.0)));
    double steps = width / 6.0 / power; /* in [1, 10) */
    return power * (steps <= 1 ? 1 : steps <= 2 ? 2 : steps <= 5 ? 5 : 10);
}

/* Fit the axis to the lines; ticks are few, since gnuplot's own run into each other. */
static void set_range(plot *drawing) {
    double left = drawing->left, right = drawing->right;
    if (drawing->log_x) {
        right = right > left ? right : 10.0 * left;
    } else {
        left = fmin(left, 0.0);
        right = right > left ? right : left + 1.0;
        plot_set(drawing, "set xtics %.7g", nice_step(right - left));
    }
    plot_set(drawing, "set xrange [%.7g:%.7g]", left, right);
}

static void begin_series(plot *drawing) {
    fprintf(drawing->command, "%s$d%d", drawing->nseries > 0 ? ", " : "plot ", drawing->nseries);
    plot_set(drawing, "$d%d << EOD", drawing->nseries);
    drawing->nseries++;
}

static void put_style(plot *drawing, plot_style style) {
    assert(style.dash >= 0 && style.dash < PLOT_DASHES);
    static const char *const dashes[PLOT_DASHES] = {"1", "(6,4)", "(2,3)", "(10,3,2,3)", "(3,6)"};
    fprintf(drawing->command, " with %s lw %g dt %s lc rgb '" SVG_COLOR "'",
            style.points ? "linespoints pt 7 ps 0.5" : "lines", style.width, dashes[style.dash],
            style.line);
    if (drawing->has_key && style.label >= 0)
        fprintf(drawing->command, " title '" SVG_LABEL "'", style.label);
    else
        fputs(" notitle", drawing->command);
}

void plot_line(plot *drawing, const double *x, const double *y, int count, plot_style style) {
    int shown = 0;
    for (int i = 0; i < count; i++) {
        if (can_show(x[i], drawing->log_x) && can_show(y[i], drawing->log_y)) {
            drawing->left = drawing->has_range ? fmin(drawing->left, x[i]) : x[i];
            drawing->right = drawing->has_range ? fmax(drawing->right, x[i]) : x[i];
            drawing->has_range = true;
            shown++;
        }
    }
    if (shown == 0)
        return;
    begin_series(drawing);
    for (int i = 0; i < count; i++) {
        put_number(drawing->script, x[i], drawing->log_x);
        put_number(drawing->script, y[i], drawing->log_y);
        fputc('\n', drawing->script);
    }
    plot_set(drawing, "EOD");
    style.points = style.points || shown == 1;
    fputs(" using 1:2", drawing->command);
    put_style(drawing, style);
}

void plot_key_entry(plot *drawing, plot_style style) {
    if (drawing->has_key && drawing->nseries > 0) {
        fputs(", NaN", drawing->command); /* what gnuplot draws nothing of */
        put_style(drawing, style);
    }
}

void plot_boxes(plot *drawing, const plot_box *boxes, int count, color fill) {
    begin_series(drawing);
    for (const plot_box *b = boxes; b < boxes + count; b++) {
        const double row[] = {b->low, b->bottom, b->low, b->high, b->bottom, b->top};
        for (int column = 0; column < 6; column++)
            put_number(drawing->script, row[column], false);
        fputc('\n', drawing->script);
    }
    plot_set(drawing, "EOD");
    fprintf(drawing->command,
            " using 1:2:3:4:5:6 with boxxyerror fs solid 1 border lc rgb '" SVG_COLOR
            "' lw 1 fc rgb '" SVG_COLOR "'",
            COLOR_PANEL, fill);
}

/* Flush and close *stream. */
static bool close_stream(FILE **stream) {
    bool good = *stream != NULL && !ferror(*stream);
    if (*stream != NULL)
        good = fclose(*stream) == 0 && good;
    *stream = NULL;
    return good;
}

bool plot_draw(plot *drawing, FILE *out, svg_settings settings, char *reason, size_t size) {
    snprintf(reason, size, "out of memory");
    settings.width = drawing->width;
    settings.height = drawing->height;
    if (drawing->has_range)
        set_range(drawing);
    bool good = close_stream(&drawing->command);
    if (good)
        plot_set(drawing, "%s", drawing->command_text);
    good = close_stream(&drawing->script) && good;
    char *svg = good ? gnuplot_run(drawing->text, reason, size) : NULL;
    if (svg == NULL)
        return false;
    svg_write(out, svg, &settings);
    free(svg);
    return true;
}

void plot_end(plot *drawing) {
    (void)close_stream(&drawing->command);
    (void)close_stream(&drawing->script);
    free(drawing->text);
    free(drawing->command_text);
    *drawing = (plot){0};
}
