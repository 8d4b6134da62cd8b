import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Deduplication in the fastest way that Kafka Streams has: what was seen lies in a key-value store
 * in memory, with its changelog; exactly once. Each record of several topics is put out once, so it
 * cannot revise; and it never forgets. A window store does, and is slower: in memory it looks
 * through each millisecond of the window at each record, on disk it is RocksDB.
 *
 * <p>Merges a backlog of TOTAL records and ends. On standard output: the seconds from when it runs
 * until all were read and committed, and those of the second half, when it is warm.
 *
 * <pre>java -cp JARS StreamsDedup.java BOOTSTRAP OUTPUT TOTAL STATE_FOLDER TOPIC …</pre>
 */
public final class StreamsDedup {
  private static final String SEEN = "seen";
  private static final AtomicLong READ = new AtomicLong();

  public static void main(String[] args) throws Exception {
    String output = args[1];
    long total = Long.parseLong(args[2]);
    List<String> topics = Arrays.asList(args).subList(4, args.length);
    var streams = new KafkaStreams(topology(topics, output).build(), settings(args[0], output, args[3]));
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          Runtime.getRuntime().halt(1);
          return null;
        });
    streams.start();
    while (streams.state() != KafkaStreams.State.RUNNING) Thread.sleep(5);
    long began = System.nanoTime();
    waitUntil(total / 2);
    long half = System.nanoTime();
    waitUntil(total);
    streams.close(); // commits
    long end = System.nanoTime();
    System.out.printf("{\"seconds\": %.3f, \"warm\": %.3f}%n", (end - began) / 1e9, (end - half) / 1e9);
  }

  private static void waitUntil(long count) throws InterruptedException {
    while (READ.get() < count) Thread.sleep(1);
  }

  private static Properties settings(String bootstrap, String output, String folder) {
    var settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, output);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, folder);
    settings.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
    return settings;
  }

  private static StreamsBuilder topology(List<String> topics, String output) {
    var builder = new StreamsBuilder();
    builder.addStateStore(
        Stores.keyValueStoreBuilder(
            Stores.inMemoryKeyValueStore(SEEN), Serdes.Bytes(), Serdes.ByteArray()));
    builder
        .stream(topics, Consumed.with(Serdes.Bytes(), Serdes.Bytes()))
        .process(Once::new, SEEN)
        .to(output, Produced.with(Serdes.Bytes(), Serdes.Bytes()));
    return builder;
  }

  /** Lets a record pass if none with the same value was seen before. */
  private static final class Once implements Processor<Bytes, Bytes, Bytes, Bytes> {
    private static final byte[] NOTHING = new byte[0];
    private ProcessorContext<Bytes, Bytes> context;
    private KeyValueStore<Bytes, byte[]> seen;

    @Override
    public void init(ProcessorContext<Bytes, Bytes> context) {
      this.context = context;
      seen = context.getStateStore(SEEN);
    }

    @Override
    public void process(Record<Bytes, Bytes> record) {
      if (seen.putIfAbsent(record.value(), NOTHING) == null) {
        context.forward(record);
      }
      READ.lazySet(READ.get() + 1);
    }
  }
}
