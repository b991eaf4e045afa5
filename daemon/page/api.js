// Calls of the daemon's API. A key goes along as a header; one that is missing or wrong is asked for.

/** An answer of the daemon that is an error, with its own message. */
export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
    this.details = error.details;
  }
}

export class Api {
  /** @param {import("./key.js").Key} key */
  constructor(key) {
    this.key = key;
  }

  /** The answer of a call, when its status is good. Throws ApiError, and TypeError when nobody answers. */
  async open(method, path, { body, headers = {}, signal } = {}) {
    for (;;) {
      const sent = this.key.value;
      const response = await fetch(path, {
        method,
        signal,
        cache: "no-store",
        credentials: "omit",
        headers: { ...headers, ...authorization(sent), ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      if (response.ok) return response;
      const error = await refusal(response);
      if (error.status !== 401) throw error;
      await this.key.replace(sent, error.message);
    }
  }

  async call(method, path, body, options = {}) {
    return (await this.open(method, path, { ...options, body })).json();
  }

  get(path, options) {
    return this.call("GET", path, undefined, options);
  }
}

/** The path of something about a model; names may hold slashes and anything else. */
export const modelPath = (id, rest = "") => `/admin/models/${path(id)}${rest}`;

export const explainPath = (id) => `/admin/explain/${path(id)}`;

const path = (id) => id.split("/").map(encodeURIComponent).join("/");

const authorization = (key) => (key === null ? {} : { Authorization: `Bearer ${key}` });

async function refusal(response) {
  const answer = await response.text();
  try {
    const { error } = JSON.parse(answer);
    if (typeof error?.message === "string") return new ApiError(response.status, error);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
  }
  return new ApiError(response.status, { message: `the daemon answered with status ${response.status}`, code: null });
}
