// Figures as people read them.

const UNITS = ["bytes", "kB", "MB", "GB", "TB"];
const daytime = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
const clock = new Intl.DateTimeFormat(undefined, daytime);
const calendar = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", ...daytime });
const numbers = new Intl.NumberFormat(undefined);

/** Bytes in decimal units with three figures. */
export function bytes(count) {
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Seconds as "0.3 s", "42 s", "3 min 5 s", "2 h 10 min". */
export function seconds(value) {
  if (value < 10) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Seconds that tick: "42 s", "3:05", "2:10:09". */
export function countdown(value) {
  const whole = Math.max(0, Math.ceil(value));
  if (whole < 60) return `${whole} s`;
  const parts = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  const shown = parts[0] === 0 ? parts.slice(1) : parts;
  return shown.map((part, place) => (place === 0 ? String(part) : String(part).padStart(2, "0"))).join(":");
}

/** A time of day, with its date unless that is today, of seconds since the epoch. */
export function time(at) {
  const date = new Date(at * 1000);
  return (date.toDateString() === new Date().toDateString() ? clock : calendar).format(date);
}

export const number = (value) => numbers.format(value);

export const rate = (value) => `${value >= 100 ? value.toFixed(0) : value.toFixed(1)} tok/s`;

export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

/** Names in a sentence: "a, b and c". */
export function list(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
}
