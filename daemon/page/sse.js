// Server-sent events from a fetch, which unlike an EventSource sends headers.

/**
 * The events of a stream: {event, id, data} for each, {comment} for a comment. Ends with the stream.
 * @param {Response} response
 */
export async function* events(response) {
  let fields = { event: "message", id: null, data: [] };
  for await (const line of lines(response)) {
    if (line === "") {
      if (fields.data.length > 0) yield { ...fields, data: fields.data.join("\n") };
      fields = { event: "message", id: null, data: [] };
    } else if (line.startsWith(":")) {
      yield { comment: line.slice(1).trim() };
    } else {
      take(fields, line);
    }
  }
}

function take(fields, line) {
  const colon = line.indexOf(":");
  const name = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (name === "data") fields.data.push(value);
  else if (name === "event" || name === "id") fields[name] = value;
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) yield part.endsWith("\r") ? part.slice(0, -1) : part;
    }
  } finally {
    reader.cancel().catch(() => {}); // a stream that broke has nothing to cancel
  }
}
