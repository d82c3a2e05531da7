/* ---- lines of numbers that are true as they are printed ---- */

/* A text with numbers, expressions and notes put in: expression`exp(${z})`. Strings are printed as they are. */
const expression = (texts, ...inputs) => ({ parts: texts.flatMap((text, i) => i < inputs.length ? [text, ...partsOf(inputs[i])] : [text]) });
const partsOf = (input) => input?.parts ?? (Array.isArray(input) ? joinParts(input, " + ") : [input]);
const joinParts = (inputs, sign) => inputs.flatMap((one, i) => i ? [sign, ...partsOf(one)] : partsOf(one));
/* Words in a line that are no part of its sum. */
const note = (words) => ({ words });

/* A negative number is in brackets after an operator, and before one that binds it. */
function writeNumber(value, digits, before, after) {
  const text = formatNumber(value, digits);
  return value < 0 && (/[+\u2212·×/^][ ]?$/.test(before) || /^ ?[·×^]/.test(after)) ? `(${text})` : text;
}
function writeParts(parts, digits, hasNotes = true) {
  return parts.reduce((text, part, i) => {
    if (typeof part === "number") return text + writeNumber(part, digits, text, typeof parts[i + 1] === "string" ? parts[i + 1] : "");
    return text + (typeof part === "string" ? part : hasNotes ? ` (${part.words})` : "");
  }, "");
}

/* A result: a whole number has all its digits, and what is near to one is not printed as one. */
function formatResult(value, digits) {
  if (value === 0) return "0";
  if (Number.isInteger(value)) return formatCount(value).replace("-", MINUS);
  let most = digits;
  while (most < 9 && Math.abs(value) < 1e4 && !Number.isInteger(value) && Number.isInteger(Number(value.toPrecision(most)))) most++;
  return formatNumber(value, most);
}

/* The line equation`${a} · ${b} = ${product}`: its numbers have as many digits as its result needs to follow from them, and the
   result `RESULT_DIGITS`, or more where it is at the border of two, or fewer if no more follow from what is stored. */
const RESULT_DIGITS = 4, MOST_DIGITS = 15, TRIED_DIGITS = [4, 5, 6, 3, 2, 1];
function equation(texts, ...inputs) {
  const result = inputs.pop(), { parts } = expression(texts.slice(0, -1), ...inputs);
  parts.push(parts.pop().replace(/ = $/, ""));
  for (const kept of TRIED_DIGITS) {
    const shown = formatResult(result, kept);
    for (let digits = RESULT_DIGITS; digits <= MOST_DIGITS; digits++) {
      const value = calculate(writeParts(parts, digits, false).split(" = ").pop());
      if ([value, Number(value.toPrecision(MOST_DIGITS - 1))].some((one) => formatResult(one, kept) === shown)) return `${writeParts(parts, digits)} = ${shown}`;
    }
  }
  return `${writeParts(parts, RESULT_DIGITS)} ≈ ${formatResult(result, RESULT_DIGITS)}`;
}

/* The first of `all` terms of a sum, and what the others add: terms = expressions and their values. */
function someTerms(terms, all, total, format = (rest) => rest) {
  if (terms.length >= all) return expression`${terms.map(({ term }) => term)}`;
  const rest = format(total - d3.sum(terms, ({ value }) => value));
  return expression`${[...terms.map(({ term }) => term), expression`${rest}${note(countedTerms(all - terms.length))}`]}`;
}
const countedTerms = (n) => n === 1 ? t("1 other term") : t("{n} other terms", { n: formatCount(n) });
/* The products of two vectors. */
function dotTerms(a, b, total = dot(a, b), most = 3) {
  return someTerms(d3.range(Math.min(most, a.length)).map((i) => ({ term: expression`${a[i]}·${b[i]}`, value: a[i] * b[i] })), a.length, total);
}
/* Numbers added up; counts are written whole. */
const addedTerms = (numbers, total, most = 4, all = numbers.length) => someTerms(numbers.slice(0, most).map((value) => ({ term: expression`${value}`, value })), all, total);
const addedCounts = (numbers, total, most = 4) => someTerms(numbers.slice(0, most).map((value) => ({ term: formatCount(value), value })), numbers.length, total, formatCount);

/* The value of a line as a calculator has it; NaN if it is not of numbers alone. */
const CALCULATOR = {
  exp: Math.exp, ln: Math.log, tanh: Math.tanh, cos: Math.cos, sin: Math.sin, max: Math.max, min: Math.min, σ: (x) => 1 / (1 + Math.exp(-x)), Φ: normalShare,
};
/* The share of a normal distribution below x: the series of Φ near 0, a continued fraction in the tails. */
function normalShare(x) {
  const z = Math.abs(x), density = Math.exp(-z * z / 2) / Math.sqrt(2 * Math.PI);
  if (z > 5) { let tail = z; for (let i = 40; i > 0; i--) tail = z + i / tail; return x < 0 ? density / tail : 1 - density / tail; }
  let term = z, sum = z;
  for (let i = 1; i < 120; i++) sum += term *= z * z / (2 * i + 1);
  return 0.5 + Math.sign(x) * density * sum;
}
function calculate(text) {
  const tokens = text.match(/(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|∞)(?:·10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?|[a-zσΦ]+|[^\s]/g) ?? [];
  let at = 0;
  const take = (...these) => these.includes(tokens[at]) ? tokens[at++] : null;
  const sum = () => { let value = product(), sign; while ((sign = take("+", MINUS))) { const next = product(); value += sign === "+" ? next : -next; } return value; };
  const product = () => { let value = factor(), sign; while ((sign = take("·", "×", "/"))) { const next = factor(); value = sign === "/" ? value / next : value * next; } return value; };
  const factor = () => take(MINUS) ? -factor() : take("√") ? Math.sqrt(factor()) : power();
  const power = () => { const value = atom(); return take("^") ? value ** factor() : value; };
  const atom = () => {
    const open = take("(", "|", "⌊", "⌈"), token = tokens[at++] ?? "";
    if (open) { at--; const value = sum(); at++; return { "(": value, "|": Math.abs(value), "⌊": Math.floor(value), "⌈": Math.ceil(value) }[open]; }
    if (CALCULATOR[token] && take("(")) { const inputs = [sum()]; while (take(",")) inputs.push(sum()); at++; return CALCULATOR[token](...inputs); }
    return readNumber(token);
  };
  const value = sum();
  return at === tokens.length ? value : NaN;
}
function readNumber(text) {
  if (text === "∞") return Infinity;
  const [number, power] = text.split("·10");
  return Number(`${number.replaceAll(",", "")}e${power ? [...power].map((c) => "-0123456789"["⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(c)]).join("") : 0}`);
}
